"""Single links between daemons that are slow, silent or broken."""

from tests.chaos.links import Fault
from tests.chaos.nemeses.base import Nemesis, kind_of


class LinkFaults(Nemesis):
    """See the module. A silent link eventually delivers everything that was sent over it."""

    kind = "links"
    interval = (0.5, 2.0)

    def harm(self) -> None:
        """Give one link one of three faults."""
        links = self.scene.links
        assert links is not None, "this cluster has no links"
        source, target = self.random.choice(links.pairs)
        fault = self.random.choice(list(Fault))
        seconds = self.duration()
        self.count(f"{fault.value} link {kind_of(source)} to {kind_of(target)}", source=source, target=target)
        with links.harmed(source, target, fault):
            self.rest(seconds)
        self.scene.history.add("link healed", source=source, target=target)
