"""Plans for many models and budgets, made by many processes."""
