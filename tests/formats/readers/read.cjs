// node read.cjs READER FILE…: as JSON, what this reader finds in each file: its sheets as lists of rows, or the SHA-256
// of the bytes that it unpacks.
const { createHash } = require("node:crypto");
const fs = require("node:fs");

const digest = (bytes) => createHash("sha256").update(bytes).digest("hex");
const READERS = {
  exceljs: async (file) => {
    const book = new (require("exceljs").Workbook)();
    await book.xlsx.readFile(file);
    return book.worksheets.map((sheet) =>
      Array.from({ length: sheet.rowCount }, (_, at) => Array.from(sheet.getRow(at + 1).values).slice(1)),
    );
  },
  sheetjs: (file) => {
    const xlsx = require("xlsx");
    const book = xlsx.readFile(file);
    return book.SheetNames.map((name) => xlsx.utils.sheet_to_json(book.Sheets[name], { header: 1, blankrows: true }));
  },
  "read-excel-file": async (file) =>
    (await require("read-excel-file/node").default(file, { trim: false })).map((sheet) => sheet.data),
  hyparquet: async (file) => {
    const { parquetReadObjects } = await import(require.resolve("hyparquet"));
    const bytes = fs.readFileSync(file);
    const rows = await parquetReadObjects({
      file: bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length),
      compressors: { ZSTD: (packed, size) => require("fzstd").decompress(packed, new Uint8Array(size)) },
    });
    return rows.map((row) => Object.values(row).map((value) => (typeof value === "bigint" ? Number(value) : value)));
  },
  fflate: (file) => digest(require("fflate").gunzipSync(fs.readFileSync(file))),
  "node:zlib": (file) => digest(require("node:zlib").gunzipSync(fs.readFileSync(file))),
  fzstd: (file) => digest(require("fzstd").decompress(fs.readFileSync(file))),
};

(async () => {
  const [reader, ...files] = process.argv.slice(2);
  const seen = [];
  for (const file of files) {
    try {
      seen.push(await READERS[reader](file));
    } catch (error) {
      seen.push(`${reader}: ${error.message}`);
    }
  }
  process.stdout.write(JSON.stringify(seen));
})();
