"use strict";
// Methods of ShardingTest that stop and start processes.
const { Mongo } = require("../connection/mongo.js");
const { unsupported } = require("../errors.js");
const { MongoRunner } = require("./mongo_runner.js");
const { parametersIn, setParameters } = require("./server_parameters.js");

const RESTART_OPTIONS = ["restart", "setParameter", "verbose", "keyFile"];

module.exports = {
  stopMongos(index) {
    if (this._cluster === undefined) return void MongoRunner.stopMongos(this._mongos[index]);
    host.launcher.run(this._directory, ["kill", `router.${index}`, "--signal", "TERM"]);
  },

  // Without options, a router gets the parameters of its first start again.
  restartMongos(index, options) {
    for (const name of Object.keys(options ?? {}))
      if (!RESTART_OPTIONS.includes(name)) unsupported(`restartMongos with ${name}`);
    if (this._cluster === undefined) {
      const { port } = this._mongos[index];
      const { keyFile = this.keyFile } = options ?? {};
      MongoRunner.stopMongos(this._mongos[index]);
      this._nameRouter(index, MongoRunner.runMongos({ configdb: this._configDB, port, keyFile }));
      this.keyFile = keyFile;
    } else {
      if (options?.keyFile) unsupported("restartMongos with keyFile");
      host.launcher.run(this._directory, ["restart", `router.${index}`]);
      this._mongos[index].close();
      this._nameRouter(index, new Mongo(this._processes("router")[index].address));
    }
    const parameters = options ? parametersIn([options]) : this._options.routerParameters[index];
    this._asMember(index, (router) => setParameters(router, parameters));
  },

  stopAllMongos() {
    this._mongos.forEach((_, index) => this.stopMongos(index));
  },

  restartMongoses() {
    this._mongos.forEach((_, index) => this.restartMongos(index));
  },

  stopShard(index) {
    this._rs[index].test.stopSet();
  },

  restartShardRS(index, options) {
    this._rs[index].test.restartAll(options);
  },

  stopAllShards() {
    this._rs.forEach((each) => each.test.stopSet());
  },

  stopConfigServer(index) {
    this.configRS.stop(index);
  },

  restartConfigServer(index) {
    this.configRS.restart(index);
  },

  startConfigServer(index) {
    this.configRS.start(index);
  },

  stopAllConfigServers() {
    this._configServers.forEach((_, index) => this.configRS.stop(index));
  },

  restartAllConfigServers() {
    this.configRS.restartAll();
  },
};
