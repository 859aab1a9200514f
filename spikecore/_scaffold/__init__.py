"""A project for a new backend, written from the templates that docs/backends.md shows."""
