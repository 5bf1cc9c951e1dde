"""Model files on disk: read, their data in other files, written whole or not at all."""
