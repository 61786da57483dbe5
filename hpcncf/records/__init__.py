"""Files of a results folder: schemas, claims, submissions, code versions."""
