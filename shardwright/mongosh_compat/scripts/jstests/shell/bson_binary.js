"use strict";
// Binary values: BinData, UUID, HexData and MD5.
const BSON = require("bson");

const Binary = BSON.Binary;
const hexOf = (value) => Buffer.from(value.buffer.subarray(0, value.position)).toString("hex");
const binary = (hexOrBytes, subtype) => {
  const value = new Binary(Buffer.from(hexOrBytes), subtype);
  return subtype === Binary.SUBTYPE_UUID && BSON.UUID.isValid(value) ? value.toUUID() : value;
};

function BinData(subtype, base64) {
  if (!Number.isInteger(subtype) || subtype < 0 || subtype > 255) throw new Error("invalid BinData subtype");
  if (typeof base64 !== "string") throw new Error("BinData data must be a String");
  return binary(Buffer.from(base64, "base64"), subtype);
}

function HexData(subtype, hex) {
  if (!/^([0-9a-f]{2})*$/i.test(hex)) throw new Error("HexData string must be an even number of hexadecimal digits");
  return binary(Buffer.from(hex, "hex"), subtype);
}

const MD5 = (hex) => HexData(Binary.SUBTYPE_MD5, hex);

function UUID(hex) {
  if (hex === undefined) return new BSON.UUID();
  if (hex instanceof Binary) return hex;
  if (!/^[0-9a-f]{32}$/i.test(hex.replaceAll("-", ""))) throw new Error("UUID string must have 32 hexadecimal digits");
  return HexData(Binary.SUBTYPE_UUID, hex.replaceAll("-", ""));
}

const methods = {
  hex() {
    return hexOf(this);
  },
  base64() {
    return Buffer.from(hexOf(this), "hex").toString("base64");
  },
  subtype() {
    return this.sub_type;
  },
  len() {
    return this.position;
  },
  tojson() {
    if (this.sub_type !== Binary.SUBTYPE_UUID || this.position !== 16)
      return `BinData(${this.sub_type},"${this.base64()}")`;
    const parts = /^(.{8})(.{4})(.{4})(.{4})(.{12})$/.exec(hexOf(this)).slice(1);
    return `UUID("${parts.join("-")}")`;
  },
  toString() {
    return this.tojson();
  },
  toJSON() {
    return { $binary: this.base64(), $type: this.sub_type.toString(16).padStart(2, "0") };
  },
};
for (const type of [Binary, BSON.UUID]) {
  for (const [name, method] of Object.entries(methods)) {
    Object.defineProperty(type.prototype, name, { value: method, configurable: true, writable: true });
  }
}
Object.defineProperty(Binary.prototype, "type", {
  get() {
    return this.sub_type;
  },
  configurable: true,
});
Object.defineProperty(BinData, "prototype", { value: Binary.prototype });
Object.defineProperty(UUID, "prototype", { value: BSON.UUID.prototype });

module.exports = { BinData, HexData, MD5, UUID };
