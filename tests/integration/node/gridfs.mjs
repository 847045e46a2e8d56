// Files in GridFS with the Node.js driver; the chunks are sharded on {files_id: 1, n: 1}, over both shards.
// Arguments: connection string, database, bucket.
import assert from "node:assert/strict";
import { once } from "node:events";
import { text } from "node:stream/consumers";
import { GridFSBucket, MongoClient } from "mongodb";

const [uri, database, bucketName] = process.argv.slice(2);
const client = new MongoClient(uri);
try {
  const db = client.db(database);
  const bucket = new GridFSBucket(db, { bucketName, chunkSizeBytes: 1000 });
  const content = Array.from({ length: 5000 }, (_, n) => `line ${n}\n`).join("");
  const upload = async (id, name) => {
    const stream = bucket.openUploadStreamWithId(id, name, { metadata: { id } });
    stream.end(content);
    await once(stream, "finish");
  };
  await Promise.all([upload(100, "a"), upload(900, "a"), upload(901, "b")]);

  const chunks = db.collection(`${bucketName}.chunks`);
  assert.equal(await chunks.countDocuments(), 3 * Math.ceil(content.length / 1000));
  const { shards } = await db.command({ collStats: `${bucketName}.chunks` });
  assert.deepEqual(Object.values(shards).map((shard) => shard.count > 0), [true, true]);

  assert.equal(await text(bucket.openDownloadStream(100)), content);
  assert.equal(await text(bucket.openDownloadStreamByName("a", { revision: 0 })), content);
  assert.equal(await text(bucket.openDownloadStream(901, { start: 995, end: 1010 })), content.slice(995, 1010));
  await assert.rejects(text(bucket.openDownloadStreamByName("missing")), { message: /FileNotFound/ });

  await bucket.rename(900, "c");
  await bucket.delete(100);
  const files = await bucket.find({}, { sort: { _id: 1 } }).toArray();
  assert.deepEqual(files.map(({ _id, filename, length }) => [_id, filename, length]),
                   [[900, "c", content.length], [901, "b", content.length]]);
  assert.equal(await chunks.countDocuments({ files_id: 100 }), 0);

  const aborted = bucket.openUploadStreamWithId(101, "d");
  aborted.on("error", () => {}); // the write that has not ended
  aborted.write(content);
  await aborted.abort();
  assert.equal(await chunks.countDocuments({ files_id: 101 }), 0);
  console.log("done");
} finally {
  await client.close();
}
