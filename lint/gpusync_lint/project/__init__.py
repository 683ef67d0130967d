"""The files of a run as one project: definitions, imports, and which files are analyzed together."""
