"""Processes that run models: their own side and the parent's, sessions, devices, and how long they may take."""
