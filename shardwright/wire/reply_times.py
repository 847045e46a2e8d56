"""The times at the end of a server's replies (the Causal Consistency specification of drivers). Pure."""

from typing import Final

TIMES: Final = ("$clusterTime", "operationTime")
"""The fields that tell the newest time that a server knows, and the time of the operation."""
