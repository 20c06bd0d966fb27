// LanceDB for Node, unmodified, through a server: `everything URL`, or `append URL FIRST COUNT`.
// Prints one line of JSON.
const lancedb = require("@lancedb/lancedb");

const ids = async (table) => {
  const rows = await table.query().select(["id"]).toArray();
  return rows.map((row) => Number(row.id)).sort((a, b) => a - b);
};

async function everything(url) {
  const database = await lancedb.connectNamespace("rest", { uri: url });
  const table = await database.createTable("node", [{ id: 1, text: "a" }, { id: 2, text: "b" }]);
  await table.add([{ id: 3, text: "c" }]);
  await table.update({ where: "id = 1", values: { text: "changed" } });
  await table
    .mergeInsert("id")
    .whenMatchedUpdateAll()
    .whenNotMatchedInsertAll()
    .execute([{ id: 3, text: "merged" }, { id: 4, text: "new" }]);
  await table.delete("id = 2");
  await table.createIndex("id", { config: lancedb.Index.btree() });
  await table.optimize();
  const again = await database.openTable("node");
  const changed = await again.query().where("id = 1").toArray();
  const found = { ids: await ids(again), text: changed[0].text, names: await database.tableNames() };
  await table.checkout(1);
  found.first = await ids(table);
  found.refused = await database.dropTable("node").then(() => "", String);
  const confirmed = await lancedb.connectNamespace("rest", {
    uri: url,
    headers: { "x-lance-ctx-confirm": "true" },
  });
  const doomed = await confirmed.createTable("doomed", [{ id: 1 }]);
  found.doomed = await ids(doomed);
  await confirmed.dropTable("doomed");
  found.left = await database.tableNames();
  return found;
}

async function append(url, first, count) {
  const database = await lancedb.connectNamespace("rest", { uri: url });
  const table = await database.openTable("shared");
  for (let number = 0; number < count; number += 1) {
    await table.add([{ id: BigInt(first + number), text: "node" }]);
  }
  return { appended: count };
}

const [verb, url, ...numbers] = process.argv.slice(2);
const work = verb === "append" ? append(url, ...numbers.map(Number)) : everything(url);
work.then((found) => console.log(JSON.stringify(found)));
