"""What runs side by side on one node or GPU bring together, and how many are best."""
