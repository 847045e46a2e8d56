"""The commands of the router, a file for each family.

Owns their arguments and replies, and how they are run; importing the package registers all of them.
May import `access`, `change_streams`, `context`, `cursors`, `ddl`, `lookup`, `operations`, `pipelines`, `placement`,
`processes`, `reads`, `replies`, `sessions`, `transactions` and `writes`.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
