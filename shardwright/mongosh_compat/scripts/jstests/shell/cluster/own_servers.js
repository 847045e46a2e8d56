"use strict";
// The processes of a replica set that a suite starts itself: a mongod for each member, and a daemon in front of it if
// the members are shard or config servers. They end with the suite.
const { assert } = require("../assert/assert.js");
const { unsupported } = require("../errors.js");
const { daemonKeyWords, isKeyFile, mongodKeyWords, withMember } = require("./members.js");
const { HOST, allocatePorts } = require("./mongo_runner.js");

const TIMEOUT_MS = 60_000;
const ELECTION_TIMEOUT_MS = 3000;

// As for the mongods of a ShardingTest.
const PARAMETERS = {
  enableTestCommands: 1,
  diagnosticDataCollectionEnabled: false,
  shutdownTimeoutMillisForSignaledShutdown: 0,
  oplogNetworkTimeoutBufferSeconds: 1,
  orphanCleanupDelaySecs: 1,
};

const PARAMETERS_OF_DAEMONS = { configd: { periodicNoopIntervalSecs: 1 } };

class OwnServers {
  // Start the mongods. `finishStart` must follow; the two are separate so that several sets can start at once.
  // `daemon` is "shardd" or "configd", or "mongod" if there is none; `words` are further options of the mongods.
  // With `keyFile`, the set has access control; the mongods' localhost exception also counts for clients of the daemons.
  constructor({ name, count, daemon, parameters, words, keyFile }) {
    this.directory = host.launcher.newDirectory();
    host.files.makeDirectory(this.directory);
    const settings = Object.entries({ ...PARAMETERS, ...PARAMETERS_OF_DAEMONS[daemon], ...parameters });
    this._words = [
      ...["--replSet", name, "--unixSocketPrefix", this.directory, ...words],
      ...settings.flatMap(([each, value]) => ["--setParameter", `${each}=${value}`]),
    ];
    this._daemon = daemon;
    this._members = Array.from({ length: count }, (_, index) => ({
      index,
      ports: allocatePorts(3),
      pids: [],
      keyFile: isKeyFile(keyFile) ? keyFile : null,
    }));
    this._name = name;
    this._members.forEach((each) => this._startMongod(each));
  }

  // The daemons import their modules while the set elects its primary.
  finishStart() {
    this._members.forEach((each) => this._awaitMongod(each));
    this._members.forEach((each) => this._startDaemon(each));
    this._initiate(this._name);
    this._awaitMembers();
  }

  // The addresses of the members for clients, and those of their mongods.
  get addresses() {
    return this._members.map(({ ports }) => `${HOST}:${ports[this._daemon === "mongod" ? 0 : 1]}`);
  }

  get mongods() {
    return this._members.map(({ ports }) => `${HOST}:${ports[0]}`);
  }

  // `keyFile` replaces the member's key file, null removes it.
  start(index, { keyFile } = {}) {
    const member = this._members[index];
    if (keyFile !== undefined) member.keyFile = isKeyFile(keyFile) ? keyFile : null;
    this._startMongod(member);
    this._awaitMongod(member);
    this._startDaemon(member);
    this._awaitAnswer(this.addresses[index], () => true);
  }

  // Send a signal to a member's processes, the daemon first, and wait until they have ended.
  stop(index, signal) {
    for (const pid of this._members[index].pids.splice(0).reverse()) host.mongod.end(pid, signal, TIMEOUT_MS);
  }

  keyFileOf(index) {
    return this._members[index].keyFile;
  }

  _startMongod({ index, ports, pids, keyFile }) {
    const words = ["--port", String(ports[0]), ...this._words, ...mongodKeyWords(keyFile, this.directory)];
    pids.push(host.mongod.startMongod(host.settings.mongod, host.files.join(this.directory, `data${index}`), words));
  }

  _awaitMongod({ index, ports, pids }) {
    const address = `${HOST}:${ports[0]}`;
    this._awaitAnswer(address, () => true, () => host.mongod.hasEnded(pids[0]));
    if (host.mongod.hasEnded(pids[0])) unsupported(`member ${index} with ${this._words.join(" ")}`);
  }

  _startDaemon({ index, ports, pids, keyFile }) {
    if (this._daemon === "mongod") return;
    const [mongod, port, metricsPort] = ports.map(String);
    const log = host.files.join(this.directory, `${this._daemon}${index}.log`);
    const socket = host.files.join(this.directory, `mongodb-${mongod}.sock`);
    const listening = ["--port", port, "--metrics-port", metricsPort, "--log-file", log];
    const behind = ["--mongod-socket", socket, "--mongod-address", `${HOST}:${mongod}`];
    const key = daemonKeyWords(keyFile, this.directory);
    pids.push(host.launcher.startDaemon(this._daemon, [...listening, ...behind, ...key]));
  }

  _initiate(name) {
    const members = this.mongods.map((address, index) => ({ _id: index, host: address }));
    const settings = { electionTimeoutMillis: ELECTION_TIMEOUT_MS };
    withMember(this.mongods[0], this.keyFileOf(0), (first) =>
      assert.commandWorked(first.adminCommand({ replSetInitiate: { _id: name, settings, members } })),
    );
    assert.soon(() => this.mongods.some((each) => isPrimary(each)), `${name} has no primary`, TIMEOUT_MS);
  }

  // Daemons register with each other after they have started.
  _awaitMembers() {
    for (const address of this.addresses)
      this._awaitAnswer(address, ({ hosts }) => hosts?.length === this.addresses.length);
  }

  _awaitAnswer(address, isRight, hasFailed = () => false) {
    assert.soonNoExcept(
      () => hasFailed() || withMember(address, null, (connection) => isRight(connection.adminCommand({ hello: 1 }))),
      `${address} does not answer`,
      TIMEOUT_MS,
    );
  }
}

const isPrimary = (address) =>
  withMember(address, null, (connection) => connection.adminCommand({ hello: 1 }).isWritablePrimary);

module.exports = { OwnServers };
