"""Keeping ranks that train one model in step: gradients of rows, or parameters now and then."""
