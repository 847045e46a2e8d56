"use strict";
// The entry point: mongosh loads this file, which runs one suite and reports its outcome. Settings are in the environment
// variable SHARDWRIGHT_JSTEST.
const fs = require("fs");

const { runSuite } = require("./host/suite.js");

const settings = JSON.parse(process.env.SHARDWRIGHT_JSTEST);
const outcome = runSuite(settings);
fs.writeFileSync(settings.outcome, JSON.stringify(outcome));
process.exit(outcome.result === "fail" ? 1 : 0);
