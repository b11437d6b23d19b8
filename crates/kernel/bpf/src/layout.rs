//! Constants and structures shared with the BPF programs, generated from their headers by build.rs.

include!(concat!(env!("OUT_DIR"), "/layout.rs"));

/// The bundled programs: bpf/include/bundled.h.
pub mod bundled {
    include!(concat!(env!("OUT_DIR"), "/bundled.rs"));
}

/// The tap at drops: bpf/include/drop.h.
pub mod drop {
    include!(concat!(env!("OUT_DIR"), "/drop.rs"));
}

/// The processes of packets: bpf/include/process.h.
pub mod process {
    include!(concat!(env!("OUT_DIR"), "/process.rs"));
}

/// Counts of packets that XDP lost, and of verdicts: bpf/include/xdp_events.h.
pub mod xdp_events {
    include!(concat!(env!("OUT_DIR"), "/xdp_events.rs"));
}

/// The load balancer: bpf/include/balance.h.
pub mod balance {
    include!(concat!(env!("OUT_DIR"), "/balance.rs"));
}

/// The helper for DPDK: dpdk/exchange.h.
pub mod dpdk {
    include!(concat!(env!("OUT_DIR"), "/exchange.rs"));
}

/// The guard: bpf/include/guard.h.
pub mod guard {
    include!(concat!(env!("OUT_DIR"), "/guard.rs"));
}

/// The program that sends: bpf/include/send.h.
pub mod send {
    include!(concat!(env!("OUT_DIR"), "/send.rs"));
}

/// The program that counts stamped packets: bpf/include/receive_layout.h.
pub mod receive {
    include!(concat!(env!("OUT_DIR"), "/receive_layout.rs"));
}

/// Why connections are slow: bpf/include/slow.h.
pub mod slow {
    include!(concat!(env!("OUT_DIR"), "/slow.rs"));
}

/// Counts of redirected packets: bpf/include/redirect_events.h.
pub mod redirect_events {
    include!(concat!(env!("OUT_DIR"), "/redirect_events.rs"));
}

/// Returns the text in a field of bytes, which ends at a zero or with the field.
pub fn text_in(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A structure of such a header, as the bytes that maps hold.
///
/// # Safety
/// Only for types that consist of integers alone, without padding.
pub unsafe trait Shared: Copy {
    fn to_bytes(&self) -> Vec<u8> {
        // SAFETY: without padding, all bytes of the value are initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }.to_vec()
    }

    /// Returns a value with all bytes zero.
    fn zeroed() -> Self {
        // SAFETY: integers can be made of any bytes.
        unsafe { std::mem::zeroed() }
    }

    /// Reads a value; `None` if there are too few bytes. Further bytes are ignored.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..size_of::<Self>())?;
        // SAFETY: there are as many bytes as the value has, and integers can be made of any.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

#[cfg(test)]
mod tests {
    use super::bundled::Counter;
    use super::*;

    #[test]
    fn value_survives_a_round_trip() {
        let counter = Counter { packets: 1, bytes: 0x0102_0304_0506_0708 };
        let mut bytes = counter.to_bytes();
        assert_eq!(bytes.len(), 16);
        bytes.push(9);
        let again = Counter::from_bytes(&bytes).unwrap();
        assert_eq!((again.packets, again.bytes), (counter.packets, counter.bytes));
        assert!(Counter::from_bytes(&bytes[..15]).is_none());
    }
}
