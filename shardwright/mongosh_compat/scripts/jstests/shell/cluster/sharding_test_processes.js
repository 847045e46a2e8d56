"use strict";
// Methods of ShardingTest that stop and start processes.
const { Mongo } = require("../connection/mongo.js");

module.exports = {
  stopMongos(index) {
    host.launcher.run(this._directory, ["kill", `router.${index}`, "--signal", "TERM"]);
  },

  restartMongos(index) {
    host.launcher.run(this._directory, ["restart", `router.${index}`]);
    this._mongos[index].close();
    this._nameRouter(index, new Mongo(this._processes("router")[index].address));
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

  restartShardRS(index) {
    this._rs[index].test.restartAll();
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
