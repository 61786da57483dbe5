"""`engine: native`: one compiled step that samples, gathers, learns and updates rows."""
