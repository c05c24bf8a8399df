"""One file per command: a dataclass whose fields are its options and whose `run` does it; `ctrlax.cli` lists them.

Nothing heavy is imported at the top of these files, so that help and mistakes are answered at once.
"""
