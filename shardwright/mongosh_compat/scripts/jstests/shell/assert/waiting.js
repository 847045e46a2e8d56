"use strict";
// Conditions that become true in time.
const { doassert, isNetworkError, isRetryableError } = require("../errors.js");
const { fail, formatErrorMsg } = require("./failing.js");

const TIMEOUT_MS = 10 * 60 * 1000;
const INTERVAL_MS = 200;

const holds = (condition) =>
  Boolean(typeof condition === "string" ? host.evaluate(condition, "assert.soon") : condition());

function soon(condition, message, timeout = TIMEOUT_MS, interval = INTERVAL_MS) {
  const deadline = Date.now() + (timeout || TIMEOUT_MS);
  // The first pauses are short: most conditions hold at once or in a moment.
  for (let pause = 10; !holds(condition); pause = Math.min(2 * pause, interval || INTERVAL_MS)) {
    if (Date.now() >= deadline) {
      fail(`assert.soon failed (timeout ${timeout || TIMEOUT_MS}ms)`, message ?? String(condition));
    }
    host.sleep(pause);
  }
}

const without = (isIgnored) => (condition, message, timeout, interval) => {
  let last = null;
  const guarded = () => {
    try {
      return holds(condition);
    } catch (error) {
      if (error.isQuit || !isIgnored(error)) throw error;
      last = error;
      return false;
    }
  };
  soon(guarded, () => formatErrorMsg(`last error: ${last}`, message), timeout, interval);
};

const soonNoExcept = without(() => true);
const soonRetryOnNetworkErrors = without(isNetworkError);
const soonRetryOnAcceptableErrors = (condition, acceptable, message, timeout, interval) =>
  without((error) => isRetryableError(error) || [acceptable].flat().includes(error.code))(
    condition,
    message,
    timeout,
    interval,
  );

// Try `attempts` times, with pauses of `interval` ms.
function retry(condition, message, attempts = 10, interval = 0) {
  for (let attempt = 1; !holds(condition); attempt++) {
    if (attempt >= attempts) fail(`assert.retry failed after ${attempts} attempts`, message);
    host.sleep(interval);
  }
}

function retryNoExcept(condition, message, attempts, interval) {
  const guarded = () => {
    try {
      return holds(condition);
    } catch (error) {
      if (error.isQuit) throw error;
      return false;
    }
  };
  retry(guarded, message, attempts, interval);
}

// Run `action`, which must not take longer than `timeout` ms; returns its result.
function time(action, message, timeout = 30000) {
  const started = Date.now();
  const result = typeof action === "string" ? host.evaluate(action, "assert.time") : action();
  const taken = Date.now() - started;
  if (taken > timeout) doassert(formatErrorMsg(`assert.time failed: it took ${taken} ms, not ${timeout}`, message));
  return result;
}

module.exports = {
  soon,
  soonNoExcept,
  soonRetryOnNetworkErrors,
  soonRetryOnAcceptableErrors,
  retry,
  retryNoExcept,
  time,
};
