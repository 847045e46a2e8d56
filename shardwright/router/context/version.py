"""Which MongoDB the router speaks like."""

from typing import Final

MONGODB_VERSION: Final = "6.0.5"
"""What clients that ask for a version are told: features and behaviour are those of MongoDB 6.0."""

MONGODB_VERSION_ARRAY: Final = (6, 0, 5, 0)
