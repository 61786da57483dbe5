"""The sections of a report: one file has a section's data, words and figure."""
