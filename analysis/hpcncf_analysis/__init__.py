"""Reads what `collect` gathered: scaling, figures, the report. Imports no torch, no submitit."""
