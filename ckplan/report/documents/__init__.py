"""Answers as documents: a function for each kind of answer."""
