"""The report page: its sections, figures and templates."""
