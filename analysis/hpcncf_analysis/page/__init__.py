"""The page that a report is: its sections as values, then as HTML and Markdown."""
