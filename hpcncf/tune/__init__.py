"""Find the best configuration within a budget."""
