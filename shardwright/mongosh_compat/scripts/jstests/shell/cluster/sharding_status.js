"use strict";
// The listing of shards, databases and chunks.
const { print } = require("../js_test.js");
const { tojsononeline } = require("../tojson.js");
const { chunksOf } = require("./chunk_lookup.js");

const CHUNKS_SHOWN = 20;

function printShardingStatus(config, isVerbose = false) {
  const lines = ["--- Sharding Status ---", "  shards:"];
  config.shards
    .find()
    .sort({ _id: 1 })
    .forEach((each) => lines.push(`\t${tojsononeline(each)}`));
  lines.push("  databases:");
  config.databases
    .find()
    .sort({ _id: 1 })
    .forEach((database) => {
      lines.push(`\t${tojsononeline(database)}`);
      const filter = { _id: new RegExp(`^${RegExp.escape(database._id)}\\.`) };
      config.collections
        .find(filter)
        .sort({ _id: 1 })
        .forEach((each) => lines.push(...collectionLines(config, each, isVerbose)));
    });
  print(lines.join("\n"));
}

function collectionLines(config, entry, isVerbose) {
  const chunks = chunksOf(config, entry._id);
  const shown = isVerbose ? chunks : chunks.slice(0, CHUNKS_SHOWN);
  const rows = shown.map(
    (each) => `\t\t\t\t${tojsononeline(each.min)} -->> ${tojsononeline(each.max)} on : ${each.shard}`,
  );
  if (shown.length < chunks.length)
    rows.push("\t\t\t\ttoo many chunks to print, use verbose if you want to force print");
  return [`\t\t${entry._id}`, `\t\t\tshard key: ${tojsononeline(entry.key)}`, "\t\t\tchunks:", ...rows];
}

module.exports = { printShardingStatus };
