"""A bank: transfers between accounts in transactions, and reads of all accounts, each of which sees the same total."""

from collections.abc import Mapping
from typing import Any, Final

from tests.chaos.checkers.append_history import Outcome
from tests.chaos.checkers.bank import Transfer, changes_by, check_ledger, check_outcomes, check_total
from tests.chaos.stage import Document, StageClient, scanned
from tests.chaos.transactions import ClientTransaction, TransactionAbortedError
from tests.chaos.workloads.base import Workload
from tests.chaos.workloads.endings import check_documents, end_transactions
from tests.chaos.worlds import KEYS, World

ACCOUNTS: Final = KEYS
INITIAL: Final = 100
AMOUNT_MAX: Final = 30
BUSY_ACCOUNTS: Final = 20
"""Some transfers are between these, so that transactions conflict."""

ACCOUNTS_WORLD: Final = World("accounts", {"a": 1}, ({"a": 250}, {"a": 500}, {"a": 750}))
LEDGER: Final = World("ledger", {"_id": "hashed"}, ())

LEVELS: Final = ("snapshot", "snapshot", "majority", "local")


class Bank(Workload):
    """See the module."""

    name = "bank"
    clients = 8

    def set_up(self) -> None:
        """Open the accounts."""
        self.stage.create(ACCOUNTS_WORLD, LEDGER)
        accounts = [{"_id": f"{number:04}", "a": number, "balance": INITIAL} for number in range(ACCOUNTS)]
        self.stage.collections[ACCOUNTS_WORLD.name].insert_many(accounts)

    def step(self, client: StageClient) -> None:
        """Mostly a transfer."""
        if client.random.random() < 0.8:
            self._transfer(client)
        else:
            client.random.choice([self._read_in_transaction, self._read_outside, self._sum_outside])(client)

    def check(self) -> list[str]:
        """Check that the ledger explains the last balances, and contains every acknowledged transfer."""
        end_transactions(self.stage)
        anomalies = self.check_last_state()
        documents = {each["_id"]: each for each in self.stage.collections[ACCOUNTS_WORLD.name].find()}
        return [*anomalies, *check_documents(self.stage, ACCOUNTS_WORLD, documents)]

    def check_last_state(self) -> list[str]:
        """The anomalies of a last snapshot of everything."""
        database = self.stage.collections
        with self.stage.admin.start_session(snapshot=True) as session:
            accounts = list(database[ACCOUNTS_WORLD.name].find({}, session=session))
            ledger = {each["_id"]: _transfer_of(each) for each in database[LEDGER.name].find({}, session=session)}
        outcomes: dict[Any, list[str]] = {}
        for operation in self.stage.recorder.operations:
            outcomes.setdefault(operation.result, []).append(operation.key)
        found = _balances(accounts)
        return [
            *check_total([(each["a"], each["balance"]) for each in accounts], ACCOUNTS, INITIAL),
            *check_ledger(found, changes_by(ledger.values()), INITIAL),
            *check_outcomes(ledger, outcomes.get(Outcome.COMMITTED, []), outcomes.get(Outcome.ABORTED, [])),
        ]

    def _transfer(self, client: StageClient) -> None:
        accounts = range(BUSY_ACCOUNTS if client.random.random() < 0.2 else ACCOUNTS)
        source, target = client.random.sample(accounts, 2)
        transfer = Transfer(source, target, client.random.randint(1, AMOUNT_MAX))
        name = client.new_identity("transfer")
        with self.stage.recorder.attempt(client.number, "transfer", name, transfer) as attempt:
            transaction = ClientTransaction(client, client.random.choice(LEVELS))
            outcome = Outcome.ABORTED
            try:
                if self._move_money(client, transaction, name, transfer):
                    outcome = transaction.commit(is_patient=client.random.random() < 0.9)
                else:
                    transaction.abort()
            except TransactionAbortedError:
                pass
            if outcome is not Outcome.UNKNOWN:
                attempt.answer(outcome)

    def _move_money(self, client: StageClient, transaction: ClientTransaction, name: str, transfer: Transfer) -> bool:
        """The statements of a transfer; False if there is not enough money, or the client has changed its mind."""
        balances = {}
        for account in (transfer.source, transfer.target):
            [found] = _exactly_one(transaction.run({"find": ACCOUNTS_WORLD.name, "filter": _query(account)}), account)
            balances[account] = found["balance"]
        if balances[transfer.source] < transfer.amount:
            return False
        balances[transfer.source] -= transfer.amount
        balances[transfer.target] += transfer.amount
        client.random.choice([_set_balances, _set_each_balance])(transaction, balances)
        entry = {"_id": name, "source": transfer.source, "target": transfer.target, "amount": transfer.amount}
        transaction.run({"insert": LEDGER.name, "documents": [entry]})
        return client.random.random() < 0.95

    def _read_in_transaction(self, client: StageClient) -> None:
        """All accounts and the ledger in one transaction."""
        transaction = ClientTransaction(client, "snapshot")
        try:
            accounts = transaction.read_all({"find": ACCOUNTS_WORLD.name}, client.random.choice([150, 2000]))
            changes = transaction.read_all({"aggregate": LEDGER.name, "pipeline": _CHANGES}, 2000)
        except TransactionAbortedError:
            return
        transaction.commit()
        anomalies = check_total([(each["a"], each["balance"]) for each in accounts], ACCOUNTS, INITIAL)
        anomalies += check_ledger(_balances(accounts), {each["_id"]: each["change"] for each in changes}, INITIAL)
        assert not anomalies, f"in a transaction: {anomalies}"
        self.reads["transaction"] += 1

    def _read_outside(self, client: StageClient) -> None:
        command = {"find": ACCOUNTS_WORLD.name, "readConcern": {"level": "snapshot"}}
        accounts = scanned(list(client.scan(command, client.random.choice([150, 2000]))))
        if accounts is not None:
            anomalies = check_total([(each["a"], each["balance"]) for each in accounts], ACCOUNTS, INITIAL)
            assert not anomalies, f"{command} at {client.at_cluster_time}: {anomalies}"
            self.reads["find"] += 1

    def _sum_outside(self, client: StageClient) -> None:
        command = {"aggregate": ACCOUNTS_WORLD.name, "pipeline": _TOTAL, "readConcern": {"level": "snapshot"}}
        found = scanned(list(client.scan(command, 10)))
        if found is not None:
            right = [{"_id": None, "accounts": ACCOUNTS, "total": ACCOUNTS * INITIAL}]
            assert found == right, f"{command} at {client.at_cluster_time}: {found}"
            self.reads["aggregate"] += 1


_TOTAL: Final[list[Document]] = [{"$group": {"_id": None, "accounts": {"$sum": 1}, "total": {"$sum": "$balance"}}}]

_CHANGES: Final[list[Document]] = [
    {
        "$project": {
            "entry": [
                {"account": "$source", "amount": {"$subtract": [0, "$amount"]}},
                {"account": "$target", "amount": "$amount"},
            ]
        }
    },
    {"$unwind": "$entry"},
    {"$group": {"_id": "$entry.account", "change": {"$sum": "$entry.amount"}}},
]
"""The sum of all transfers to and from each account."""


def _query(account: int) -> Document:
    return {"_id": f"{account:04}", "a": account}


def _exactly_one(reply: Document, account: int) -> list[Document]:
    found: list[Document] = reply["cursor"]["firstBatch"]
    assert len(found) == 1, f"account {account} is {found} in a transaction"
    return found


def _set_balances(transaction: ClientTransaction, balances: Mapping[int, int]) -> None:
    """In one command, which may go to two shards."""
    updates = [{"q": _query(account), "u": {"$set": {"balance": balance}}} for account, balance in balances.items()]
    reply = transaction.run({"update": ACCOUNTS_WORLD.name, "updates": updates})
    assert (reply["n"], reply["nModified"]) == (2, 2), f"{updates} were answered {reply}"


def _set_each_balance(transaction: ClientTransaction, balances: Mapping[int, int]) -> None:
    for account, balance in balances.items():
        update = {"$set": {"balance": balance}}
        reply = transaction.run({"findAndModify": ACCOUNTS_WORLD.name, "query": _query(account), "update": update})
        assert reply["value"], f"findAndModify of account {account} was answered {reply}"


def _balances(accounts: list[Document]) -> dict[int, int]:
    return {each["a"]: each["balance"] for each in accounts}


def _transfer_of(entry: Document) -> Transfer:
    return Transfer(entry["source"], entry["target"], entry["amount"])
