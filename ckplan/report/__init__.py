"""Results as text and as JSON; nothing is computed here."""
