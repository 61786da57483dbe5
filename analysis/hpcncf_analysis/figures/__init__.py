"""The figures of the report: what each draws is told where it is drawn."""
