"""Answers to the questions of a user, each made from one planning pipeline: analyze, plan, rewrite, pareto, explain."""
