"""The navigation: the pages that each user can open."""

from typing import Final

NAVIGATION: Final = (
    ("/", "Overview"),
    ("/collections", "Collections"),
    ("/heat", "Heat map"),
    ("/operations", "Operations"),
    ("/balancer", "Balancer"),
    ("/security", "Security and health"),
    ("/why", "Why did it go there?"),
)
