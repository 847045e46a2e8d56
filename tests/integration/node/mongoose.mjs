// A small application with Mongoose: a shop whose orders are sharded on {region: 1}, and whose other collections are not.
// Arguments: connection string, database. Orders have been sharded before; regions below "n" are on one shard.
import assert from "node:assert/strict";
import { once } from "node:events";
import { text } from "node:stream/consumers";
import mongoose from "mongoose";

const [uri, database] = process.argv.slice(2);
const { Schema } = mongoose;
mongoose.set("autoCreate", false);

const personSchema = new Schema(
  { email: { type: String, required: true, unique: true }, name: { first: String, last: String }, friends: [{ type: Schema.Types.ObjectId, ref: "Person" }] },
  { timestamps: true, discriminatorKey: "role", virtuals: { fullName: { get() { return `${this.name.first} ${this.name.last}`; } } } },
);
const productSchema = new Schema({ title: { type: String, index: true }, price: Schema.Types.Decimal128, tags: [String] });
const orderSchema = new Schema(
  {
    region: { type: String, required: true, index: true },
    buyer: { type: Schema.Types.ObjectId, ref: "Person" },
    lines: [{ product: { type: Schema.Types.ObjectId, ref: "Product" }, amount: { type: Number, min: 1 } }],
    state: { type: String, enum: ["open", "paid", "sent"], default: "open" },
    notes: Map,
  },
  { shardKey: { region: 1 }, optimisticConcurrency: true, collection: "orders" },
);
orderSchema.virtual("pieces").get(function () { return this.lines.reduce((sum, line) => sum + line.amount, 0); });
personSchema.virtual("orders", { ref: "Order", localField: "_id", foreignField: "buyer" });
personSchema.virtual("orderCount", { ref: "Order", localField: "_id", foreignField: "buyer", count: true });
let saved = 0;
orderSchema.post("save", () => { saved += 1; });

const connection = await mongoose.createConnection(uri, { dbName: database }).asPromise();
try {
  const Person = connection.model("Person", personSchema);
  const Seller = Person.discriminator("Seller", new Schema({ stall: Number }));
  const Product = connection.model("Product", productSchema);
  const Order = connection.model("Order", orderSchema);
  await Promise.all([Person.createCollection(), Product.createCollection()]);
  await Promise.all([Person.syncIndexes(), Product.syncIndexes(), Order.syncIndexes()]);
  assert.ok((await Person.listIndexes()).some((index) => index.unique));

  // Documents, discriminators and validation.
  const [ada, bob] = await Person.create([
    { email: "ada@example.com", name: { first: "Ada", last: "L" } },
    { email: "bob@example.com", name: { first: "Bob", last: "M" } },
  ]);
  const seller = await Seller.create({ email: "sam@example.com", name: { first: "Sam", last: "N" }, stall: 4, friends: [ada, bob] });
  assert.ok(ada.createdAt instanceof Date);
  assert.equal(await Person.countDocuments(), 3);
  assert.equal((await Seller.find()).length, 1);
  await assert.rejects(Person.create({ email: "ada@example.com" }), { code: 11000 });
  await assert.rejects(Order.create({ region: "asia", state: "lost" }), { name: "ValidationError" });
  const products = await Product.insertMany(
    ["pen", "ink", "map"].map((title, n) => ({ title, price: `${n + 1}.50`, tags: n ? ["paper", title] : [title] })),
  );
  const regions = ["asia", "europe", "north", "south"];
  const orders = await Order.insertMany(
    Array.from({ length: 40 }, (_, n) => ({
      region: regions[n % 4], buyer: n % 2 ? ada : bob,
      lines: [{ product: products[n % 3], amount: n + 1 }], notes: { n: String(n) },
    })),
  );

  // Populate: paths, arrays of subdocuments, virtuals with and without count, nested.
  const found = await Order.findOne({ region: "south" }).sort("_id").populate("buyer").populate("lines.product");
  assert.equal(found.buyer.fullName, "Ada L");
  assert.equal(found.lines[0].product.title, "pen");
  assert.equal(found.pieces, 4);
  assert.equal(found.notes.get("n"), "3");
  const people = await Person.find().sort("email").populate("orders").populate("orderCount");
  assert.deepEqual(people.map((person) => [person.orders.length, person.orderCount]), [[20, 20], [20, 20], [0, 0]]);
  const deep = await Person.findById(seller._id).populate({ path: "friends", populate: { path: "orders", options: { sort: { "lines.amount": -1 } } } });
  assert.deepEqual(deep.friends.map((friend) => friend.orders[0].lines[0].amount), [40, 39]);

  // Saving: changes of single paths, versions, arrays, and conflicts.
  found.lines.push({ product: products[1], amount: 2 });
  found.state = "paid";
  await found.save();
  assert.equal(saved, 1);
  const stale = await Order.findOne({ _id: orders[0]._id });
  await Order.findOneAndUpdate({ _id: stale._id, region: stale.region }, { $inc: { __v: 1 }, state: "sent" });
  stale.state = "paid";
  await assert.rejects(stale.save(), { name: "VersionError" });
  const fresh = await Order.findById(orders[1]._id);
  fresh.lines[0].amount = 0;
  await assert.rejects(fresh.save(), { name: "ValidationError" });
  const changed = await Order.find({ region: { $in: ["asia", "north"] } }).sort("_id").limit(6);
  for (const order of changed) order.notes.set("seen", true);
  const bulk = await Order.bulkSave(changed);
  assert.equal(bulk.modifiedCount, 6);

  const written = await Order.bulkWrite([
    { insertOne: { document: { region: "atlantis", state: "open" } } },
    { insertOne: { document: { region: "utopia", state: "open" } } },
    { updateMany: { filter: { region: { $in: ["atlantis", "utopia"] } }, update: { state: "paid" } } },
    { deleteOne: { filter: { region: "atlantis" } } },
    { deleteOne: { filter: { region: "utopia", state: "paid" } } },
  ]);
  assert.deepEqual([written.insertedCount, written.modifiedCount, written.deletedCount], [2, 2, 2]);

  // Updates and deletions on one shard and on both.
  assert.equal((await Order.updateMany({ state: "open" }, { $set: { "notes.open": true } })).modifiedCount, 38);
  assert.equal((await Order.updateOne({ region: "west" }, { state: "open" }, { upsert: true })).upsertedCount, 1);
  assert.equal((await Order.findOneAndDelete({ region: "west" })).region, "west");
  assert.equal((await Order.deleteMany({ region: "north", state: "sent" })).deletedCount, 0);
  await (await Order.findOne({ region: "north" })).deleteOne();
  assert.equal(await Order.countDocuments({ region: "north" }), 9);
  assert.equal(await Order.estimatedDocumentCount(), 39);
  assert.deepEqual((await Order.distinct("region")).sort(), regions);
  assert.ok(await Order.exists({ region: "south", state: "paid" }));

  // Aggregation of what lies on one shard, and of what lies on both.
  const one = await Order.aggregate([{ $match: { region: "asia" } }, { $unwind: "$lines" }, { $group: { _id: "$region", sum: { $sum: "$lines.amount" } } }]);
  assert.deepEqual(one, [{ _id: "asia", sum: 190 }]);
  const sorted = await Order.aggregate().match({ state: "open" }).sort({ "lines.amount": -1 }).limit(3).project({ _id: 0, amounts: "$lines.amount" });
  assert.deepEqual(sorted.map((each) => each.amounts), [[40], [39], [38]]);
  const titles = await Product.aggregate([{ $unwind: "$tags" }, { $sortByCount: "$tags" }, { $limit: 1 }]);
  assert.deepEqual(titles, [{ _id: "paper", count: 2 }]);

  const best = await Person.aggregate()
    .lookup({ from: "orders", localField: "_id", foreignField: "buyer", as: "bought" }) // which are on both shards
    .unwind("$bought").group({ _id: "$email", orders: { $sum: 1 }, regions: { $addToSet: "$bought.region" } })
    .sort({ orders: -1, _id: 1 });
  assert.deepEqual(best.map((each) => [each._id, each.orders, each.regions.sort()]), [
    ["ada@example.com", 20, ["europe", "south"]], ["bob@example.com", 19, ["asia", "north"]],
  ]);
  const [counted] = await Order.aggregate().facet({ states: [{ $sortByCount: "$state" }, { $limit: 1 }], all: [{ $count: "n" }] });
  assert.deepEqual(counted, { states: [{ _id: "open", count: 37 }], all: [{ n: 39 }] });
  const seen = new Set();
  for await (const order of Order.aggregate([{ $project: { region: 1 } }]).cursor({ batchSize: 5 })) seen.add(String(order._id));
  assert.equal(seen.size, 39);
  await Order.aggregate([{ $group: { _id: "$region", orders: { $sum: 1 } } }, { $merge: { into: "totals" } }]);
  assert.deepEqual(await connection.collection("totals").distinct("orders"), [9, 10]);

  // Changes of one document.
  const watched = new Order({ region: "north", buyer: bob });
  const { operationTime } = await connection.db.command({ ping: 1 });
  const options = { fullDocument: "updateLookup", startAtOperationTime: operationTime, hydrate: true };
  const changes = Order.watch([{ $match: { "documentKey._id": watched._id } }], options);
  // The driver does not tell all its connections that time, so the stream begins before there is anything to be seen.
  await changes.$driverChangeStreamPromise;
  assert.equal(await changes.driverChangeStream.tryNext(), null);
  await watched.save();
  const inserted = await changes.next();
  assert.deepEqual([inserted.operationType, inserted.fullDocument.pieces], ["insert", 0]);
  watched.state = "sent";
  await watched.save();
  assert.equal((await changes.next()).fullDocument.state, "sent");
  await changes.close();
  const resumed = Order.watch([], { resumeAfter: inserted._id, fullDocument: "updateLookup" });
  assert.deepEqual((await resumed.next()).updateDescription.updatedFields.state, "sent");
  await resumed.close();
  await watched.deleteOne();

  // Cursors, lean documents, and the other ways to read.
  let amounts = 0;
  for await (const order of Order.find().sort({ "lines.amount": 1 }).cursor({ batchSize: 7 })) amounts += order.pieces;
  assert.ok(amounts > 700);
  assert.equal((await Order.find().lean().sort("region").skip(38).limit(5)).length, 1);
  assert.equal((await Order.findOne({ region: "europe" }, "state -_id").lean()).state, "open");
  assert.ok((await Order.find({ region: "asia" }).explain("queryPlanner")).queryPlanner);

  // Sessions: causally consistent, with and without Mongoose passing them on.
  const session = await connection.startSession({ causalConsistency: true });
  const mine = new Order({ region: "europe", buyer: ada });
  await mine.save({ session });
  const read = await Order.findById(mine._id, null, { session }).populate("buyer");
  assert.equal(read.$session(), session);
  read.state = "paid";
  await read.save();
  assert.equal((await Order.findById(mine._id).session(session).read("secondaryPreferred")).state, "paid");
  await session.endSession();

  // Transactions over both shards: as a whole, or not at all.
  const sent = () => Order.countDocuments({ state: "sent" });
  const before = await sent();
  const inTransaction = (change) => connection.transaction(async (within) => {
    await Order.create([{ region: "asia", state: "sent" }, { region: "south", state: "sent" }], { session: within, ordered: true });
    assert.equal(await Order.countDocuments({ state: "sent" }).session(within), before + 2);
    assert.equal(await sent(), before);
    await change();
  });
  await assert.rejects(inTransaction(() => Promise.reject(new Error("changed my mind"))), { message: "changed my mind" });
  assert.equal(await sent(), before);
  await inTransaction(() => Promise.resolve());
  assert.equal(await sent(), before + 2);

  // An aborted transaction leaves no trace in documents either: what it has saved is saved once more.
  const changing = await Order.findOne({ region: "europe", state: "open" });
  const created = new Order({ region: "south", state: "open" });
  await assert.rejects(connection.transaction(async (within) => {
    changing.state = "sent";
    await changing.save({ session: within });
    await created.save({ session: within });
    assert.equal(created.isNew, false);
    throw new Error("too late");
  }), { message: "too late" });
  assert.deepEqual([changing.isModified("state"), created.isNew], [true, true]);
  assert.equal((await Order.findById(changing._id)).state, "open");
  assert.equal(await Order.exists({ _id: created._id }), null);
  await connection.withSession((within) => within.withTransaction(async () => {
    await changing.save({ session: within });
    await created.save({ session: within });
  }));
  assert.equal(await sent(), before + 3);
  assert.ok(await Order.exists({ _id: created._id }));

  // Files beside the models.
  const bucket = new mongoose.mongo.GridFSBucket(connection.db, { bucketName: "invoices", chunkSizeBytes: 100 });
  const upload = bucket.openUploadStream("invoice", { metadata: { order: created._id } });
  upload.end("paid ".repeat(100));
  await once(upload, "finish");
  const Invoice = connection.model("Invoice", new Schema({ filename: String, length: Number }), "invoices.files");
  const invoice = await Invoice.findOne({ "metadata.order": created._id });
  assert.deepEqual([invoice.filename, invoice.length], ["invoice", 500]);
  assert.equal(await text(bucket.openDownloadStream(invoice._id)), "paid ".repeat(100));

  await connection.dropDatabase();
  assert.equal(await Order.countDocuments(), 0);
  console.log("done");
} finally {
  await connection.close();
}
