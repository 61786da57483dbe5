"""What to ask for next: the sentence, the request, what it costs, and how sure it is."""
