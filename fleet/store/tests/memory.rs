//! The memory that indexing needs, for many chunks and for large ones. A program of its own: it measures its process.

mod stored;

use std::fs;

use stored::Stored;
use trawl_store::{Store, index};

/// Memory that an indexing may need, in KiB.
const MOST: u64 = 512 << 10;

/// Indexes the store; returns the packets, and the most memory that this took, in KiB.
fn index_measured(stored: &Stored) -> (u64, u64) {
    // `trawl store index` does so.
    trawl_sys::memory::share_heap();
    let store = Store::open(&format!("file://{}", stored.0.display()), false).expect("a store");
    // Begins to measure again.
    fs::write("/proc/self/clear_refs", "5").expect("this process");
    let indexed = index(&store, false, &mut |_, _| {}).expect("an index");
    let status = fs::read_to_string("/proc/self/status").expect("this process");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let most = most.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse().ok());
    let most = most.expect("a number");
    println!("{} packets in {} chunks: {} MiB", indexed.packets, indexed.chunks, most >> 10);
    assert_eq!(indexed.unreadable, Vec::<String>::new());
    (indexed.packets, most)
}

fn index_many(chunks: u64) {
    let stored = Stored::new(&chunks.to_string());
    let (sealed, bytes) = stored.chunk(10);
    (0..chunks).for_each(|sequence| stored.put(&sealed, &bytes, sequence));
    let (packets, most) = index_measured(&stored);
    assert_eq!(packets, 10 * chunks);
    assert!(most < MOST, "{most} KiB");
}

/// The tests measure their process one after another.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn many_small_chunks_need_little_memory() {
    let _alone = ALONE.lock();
    index_many(3_000);
}

#[test]
#[ignore = "it takes minutes"]
fn sixty_thousand_chunks_need_little_memory() {
    let _alone = ALONE.lock();
    index_many(60_000);
}

#[test]
fn chunk_of_many_flows_needs_little_memory() {
    let _alone = ALONE.lock();
    let stored = Stored::new("flows");
    let flows = 700_000;
    let (sealed, bytes) = stored.chunk(flows);
    stored.put(&sealed, &bytes, 0);
    drop(bytes);
    let (packets, most) = index_measured(&stored);
    assert_eq!(packets, u64::from(flows));
    assert!(most < MOST, "{most} KiB");
}
