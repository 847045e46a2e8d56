"""The shard daemon's own commands, a file for each family.

Owns their arguments and replies, and running them; importing the package registers all of them.
May import `cluster`, `consistency`, `context`, `ddl`, `exchange`, `key_statistics`, `local_mongod`, `metadata`,
`migration`, `operations`, `range_deleter`, `resharding`, `splitting` and `two_phase_commit`.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
