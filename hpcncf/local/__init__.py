"""This machine as a cluster: a queue that runs one run after another on cores of its own."""
