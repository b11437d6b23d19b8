//! Avro files, as far as the table's manifests need them: values are written in the order of the schema's fields.

/// The contents of a record.
#[derive(Debug, Default)]
pub struct Record(Vec<u8>);

impl Record {
    pub fn long(&mut self, value: i64) {
        let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
        while rest >= 0x80 {
            self.0.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.0.push(rest as u8);
    }

    pub fn bytes(&mut self, value: &[u8]) {
        self.long(value.len() as i64);
        self.0.extend_from_slice(value);
    }

    pub fn text(&mut self, value: &str) {
        self.bytes(value.as_bytes());
    }

    pub fn boolean(&mut self, value: bool) {
        self.0.push(value.into());
    }

    /// Writes which member of the union of null and a type follows.
    pub fn is_present(&mut self, is_present: bool) {
        self.long(is_present.into());
    }

    pub fn optional_long(&mut self, value: Option<i64>) {
        self.is_present(value.is_some());
        value.into_iter().for_each(|value| self.long(value));
    }

    pub fn list<T>(&mut self, items: impl ExactSizeIterator<Item = T>, mut item: impl FnMut(&mut Self, T)) {
        if items.len() > 0 {
            self.long(items.len() as i64);
            items.for_each(|one| item(self, one));
        }
        self.long(0);
    }
}

/// Returns a file of records. `metadata` are its descriptions, besides the schema.
pub fn file(schema: &str, metadata: &[(&str, String)], records: &[Record]) -> Vec<u8> {
    // Readers search for this marker between blocks; it only has to be unlikely in the data.
    const SYNC: [u8; 16] = *b"\x93trawl-index\x00\x17\xe1\x0a";
    let mut out = Record(b"Obj\x01".to_vec());
    let own = [("avro.schema", schema), ("avro.codec", "null")];
    let all = own.into_iter().chain(metadata.iter().map(|(name, value)| (*name, value.as_str())));
    let all: Vec<_> = all.collect();
    out.list(all.iter(), |out, (name, value)| {
        out.text(name);
        out.text(value);
    });
    out.0.extend_from_slice(&SYNC);
    if !records.is_empty() {
        let block: Vec<u8> = records.iter().flat_map(|record| record.0.iter().copied()).collect();
        out.long(records.len() as i64);
        out.bytes(&block);
        out.0.extend_from_slice(&SYNC);
    }
    out.0
}
