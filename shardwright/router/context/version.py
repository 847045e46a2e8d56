"""The version of MongoDB that the router emulates."""

from typing import Final

MONGODB_VERSION: Final = "6.0.5"
"""The version reported to clients: features and behaviour are those of MongoDB 6.0."""

MONGODB_VERSION_ARRAY: Final = (6, 0, 5, 0)
