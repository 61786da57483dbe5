"""Contextual NeuMF: model, data, engines, training, evaluation."""
