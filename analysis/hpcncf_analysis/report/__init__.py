"""The page: sections, figures, templates."""
