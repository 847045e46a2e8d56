// The output of sh.status().
const status = sh.status();
assert(status.value.shards.length > 0, "sh.status() lists the shards");
print(status);
