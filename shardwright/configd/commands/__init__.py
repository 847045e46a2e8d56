"""The commands of the config server, a file for each family.

Owns their arguments and replies; importing the package registers all of them (`command_registry`).
May import `balancer`, `catalog`, `term`, `resharding`, `shards` and `user_writes`.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
