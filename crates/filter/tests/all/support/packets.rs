//! Difficult packets for filters: every header that an expression can read, truncated at every length around its
//! borders, and noise. Every run uses the same packets.

/// A small random number generator (SplitMix64) with a seed of its own.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

const V4: [[u8; 4]; 6] =
    [[10, 0, 0, 1], [10, 0, 0, 2], [192, 168, 1, 2], [255, 255, 255, 255], [224, 0, 0, 5], [10, 1, 2, 3]];

fn v6(which: usize) -> [u8; 16] {
    let mut a = [0u8; 16];
    match which % 4 {
        0 => a[..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]),
        1 => a[..2].copy_from_slice(&[0xfe, 0x80]),
        2 => a[..2].copy_from_slice(&[0xff, 2]),
        _ => a[..6].copy_from_slice(&[0x20, 1, 0x0d, 0xb8, 0, 5]),
    }
    a[15] = 1 + (which as u8 & 1);
    a
}

const PORTS: [u16; 10] = [53, 80, 443, 22, 1024, 60_000, 6081, 4789, 100, 50];

/// Returns a transport header and its protocol number.
fn transport(r: &mut Random) -> (u8, Vec<u8>) {
    let ports = [r.pick(&PORTS).to_be_bytes(), r.pick(&PORTS).to_be_bytes()].concat();
    let payload_length = r.below(40);
    let payload = if r.below(4) == 0 { b"GET / HTTP/1.1\r\n".to_vec() } else { r.bytes(payload_length) };
    match r.below(12) {
        0..=3 => {
            let words = r.pick(&[5u8, 5, 6, 8, 15]);
            let options = vec![1u8; (usize::from(words) - 5) * 4];
            let flags = r.pick(&[2u8, 0x10, 0x12, 0x18, 0x11, 4, 0xc2]);
            let rest = [&[0, 0, 16, 1, 0, 0, 0, 9, words << 4, flags][..], &[1, 0, 0, 0, 0, 0]];
            (6, join(&[&ports, &rest.concat(), &options, &payload]))
        }
        4..=6 => {
            let length = (payload.len() as u16 + 8).to_be_bytes();
            (17, join(&[&ports, &length, &[0, 0], &payload]))
        }
        7 => (1, join(&[&[r.pick(&[8u8, 0, 3, 11]), r.pick(&[0u8, 3]), 0, 0, 0, 1, 0, 1], &payload])),
        8 => (132, join(&[&ports, &[0, 0, 0, 1, 0, 0, 0, 0, 1, 0], &payload])),
        9 => (58, join(&[&[r.pick(&[128u8, 129, 135, 134, 143]), 0, 0, 0], &payload])),
        10 => (r.pick(&[2u8, 9, 103, 112, 47, 4, 51, 50]), join(&[&[0x21, 0, 8, 0], &payload])),
        _ => (r.next() as u8, payload),
    }
}

fn ipv4_with(r: &mut Random, protocol: u8, body: &[u8]) -> Vec<u8> {
    let words = r.pick(&[5u8, 5, 5, 5, 6, 10, 15, 3]);
    let options = vec![1u8; (usize::from(words).max(5) - 5) * 4];
    let total = (20 + options.len() + body.len()) as u16;
    let fragment = r.pick(&[0u16, 0, 0, 0, 0x4000, 0x2000, 0x2001, 0x00b9]).to_be_bytes();
    let ttl = r.pick(&[64u8, 64, 1, 255, 0, 33]);
    join(&[
        &[0x40 | words, r.pick(&[0u8, 0xb8])],
        &total.to_be_bytes(),
        &[0, 1],
        &fragment,
        &[ttl, protocol, 0, 0],
        &r.pick(&V4),
        &r.pick(&V4),
        &options,
        body,
    ])
}

pub fn ipv4(r: &mut Random) -> Vec<u8> {
    let (protocol, body) = transport(r);
    ipv4_with(r, protocol, &body)
}

fn ipv6_with(r: &mut Random, protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut next = protocol;
    let mut body = body.to_vec();
    for _ in 0..r.pick(&[0usize, 0, 0, 1, 2, 5]) {
        let kind = r.pick(&[0u8, 60, 43, 44, 51]);
        let words = if kind == 44 { 0 } else { r.pick(&[0u8, 0, 1, 3]) };
        let length = match kind {
            51 => (usize::from(words) + 2) * 4,
            _ => (usize::from(words) + 1) * 8,
        };
        let mut header = vec![0u8; length];
        header[0] = next;
        header[1] = words;
        body = join(&[&header, &body]);
        next = kind;
    }
    let length = (body.len() as u16).to_be_bytes();
    let (from, to) = (v6(r.below(8)), v6(r.below(8)));
    join(&[&[0x60, 0, 0, 0], &length, &[next, 64], &from, &to, &body])
}

pub fn ipv6(r: &mut Random) -> Vec<u8> {
    let (protocol, body) = transport(r);
    ipv6_with(r, protocol, &body)
}

fn arp(r: &mut Random) -> Vec<u8> {
    join(&[&[0, 1, 8, 0, 6, 4, 0, r.pick(&[1u8, 2, 3, 4])], &mac(r), &r.pick(&V4), &mac(r), &r.pick(&V4)])
}

fn mac(r: &mut Random) -> [u8; 6] {
    match r.below(6) {
        0 | 1 => [2, 0, 0, 0, 0, 1],
        2 | 3 => [2, 0, 0, 0, 0, 2],
        4 => [0xff; 6],
        _ => [1, 0, 0x5e, 0, 0, 5],
    }
}

/// Returns an Ethernet type and its payload.
fn network(r: &mut Random, depth: usize) -> (u16, Vec<u8>) {
    if depth < 4 {
        match r.below(14) {
            0 | 1 => {
                let (inner, body) = network(r, depth + 1);
                let kind = r.pick(&[0x8100u16, 0x8100, 0x88a8, 0x9100]);
                let tag = r.pick(&[100u16, 200, 1, 0x6064, 4095, 300]);
                return (kind, join(&[&tag.to_be_bytes(), &inner.to_be_bytes(), &body]));
            }
            2 => return (0x8847, mpls(r, depth)),
            3 => return (0x8864, pppoe(r)),
            4 => return (0x0800, tunnel(r, depth)),
            _ => {}
        }
    }
    match r.below(16) {
        0..=5 => (0x0800, ipv4(r)),
        6..=9 => (0x86dd, ipv6(r)),
        10 => (r.pick(&[0x0806u16, 0x8035]), arp(r)),
        11 | 12 => {
            let body = llc(r);
            (body.len() as u16, body)
        }
        13 => {
            let kind = r.pick(&[0x6003u16, 0x6001, 0x6002, 0x6004, 0x6007, 0x809b, 0x80f3, 0x8137]);
            (kind, join(&[&[0x2a, 0, 0x81, 2, 0x7b, 0x28, 0x7b, 0x28], &r.bytes(30)]))
        }
        14 => (0x8863, r.bytes(20)),
        _ => (r.pick(&[0x1111u16, 0x9000, 0x05dd, 0x88cc]), r.bytes(30)),
    }
}

fn mpls(r: &mut Random, depth: usize) -> Vec<u8> {
    let mut labels = Vec::new();
    let count = 1 + r.below(3);
    for index in 0..count {
        let label = r.pick(&[100_000u32, 1024, 16, 3]);
        let last = u32::from(index + 1 == count);
        labels.extend((label << 12 | last << 8 | 64).to_be_bytes());
    }
    let body = if depth == 0 && r.below(4) == 0 { ipv6(r) } else { ipv4(r) };
    join(&[&labels, &body])
}

fn pppoe(r: &mut Random) -> Vec<u8> {
    let (protocol, body) = match r.below(3) {
        0 => (0x57u16, ipv6(r)),
        1 => (0xc021, r.bytes(8)),
        _ => (0x21, ipv4(r)),
    };
    let session = r.pick(&[0x27u16, 1]);
    let length = (body.len() as u16 + 2).to_be_bytes();
    join(&[&[0x11, 0], &session.to_be_bytes(), &length, &protocol.to_be_bytes(), &body])
}

/// Returns an IPv4 packet with another packet in it.
fn tunnel(r: &mut Random, depth: usize) -> Vec<u8> {
    let ethernet = frame_at(r, depth + 2);
    let (protocol, body) = match r.below(6) {
        0 => (4, ipv4(r)),
        1 => (41, ipv6(r)),
        2 => (47, gre(r, &ethernet)),
        3 => {
            let vni = r.pick(&[[0u8, 0, 11, 0], [0, 0, 12, 0]]);
            (17, udp(4789, &join(&[&[8, 0, 0, 0], &vni, &ethernet])))
        }
        _ => (17, udp(6081, &geneve(r, &ethernet))),
    };
    if r.below(3) == 0 {
        // The packet is IPv6, although the Ethernet type before it may announce IPv4.
        return ipv6_with(r, protocol, &body);
    }
    ipv4_with(r, protocol, &body)
}

fn udp(port: u16, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u16 + 8).to_be_bytes();
    join(&[&[0xc0, 0], &port.to_be_bytes(), &length, &[0, 0], body])
}

fn geneve(r: &mut Random, ethernet: &[u8]) -> Vec<u8> {
    let words = r.pick(&[0u8, 0, 1, 4]);
    let options = vec![0u8; usize::from(words) * 4];
    let vni = r.pick(&[[0u8, 0, 11, 0], [0, 0, 12, 0]]);
    let (kind, body) = match r.below(4) {
        0 => (0x0800u16, ipv4(r)),
        1 => (0x86dd, ipv6(r)),
        _ => (0x6558, ethernet.to_vec()),
    };
    let first = [r.pick(&[0u8, 0, 0, 0x40]) | words, 0];
    join(&[&first, &kind.to_be_bytes(), &vni, &options, &body])
}

fn gre(r: &mut Random, ethernet: &[u8]) -> Vec<u8> {
    let flags = r.pick(&[0u8, 0x80, 0x20, 0x30, 0xb0]);
    let fields = (flags & 0xb0).count_ones() as usize;
    let (kind, body) = match r.below(4) {
        0 => (0x0800u16, ipv4(r)),
        1 => (0x86dd, ipv6(r)),
        _ => (0x6558, ethernet.to_vec()),
    };
    join(&[&[flags, 0], &kind.to_be_bytes(), &r.bytes(fields * 4), &body])
}

fn llc(r: &mut Random) -> Vec<u8> {
    let saps = r.pick(&[[0x42u8, 0x42], [0xfe, 0xfe], [0xf0, 0xf0], [0xe0, 0xe0], [0xaa, 0xaa], [0xff, 0xff], [4, 5]]);
    let control = r.pick(&[3u8, 0, 1, 5, 9, 0x63, 0x43, 0x6f, 0xe3, 0xaf, 0x87]);
    let rest = match r.below(3) {
        0 => join(&[&[r.pick(&[0u8, 8]), 0, 7], &[0x80, 0x9b], &r.bytes(20)]),
        1 => join(&[
            &[r.pick(&[0x83u8, 0x82, 0x81]), 27, 1, 0],
            &[r.pick(&[15u8, 16, 18, 20, 24, 26, 17])],
            &r.bytes(20),
        ]),
        _ => r.bytes(24),
    };
    join(&[&saps, &[control], &rest])
}

fn frame_at(r: &mut Random, depth: usize) -> Vec<u8> {
    let (kind, body) = network(r, depth);
    let kind = if r.below(40) == 0 { r.next() as u16 } else { kind };
    join(&[&mac(r), &mac(r), &kind.to_be_bytes(), &body])
}

/// Returns a whole Ethernet frame, often with a defect.
pub fn frame(r: &mut Random) -> Vec<u8> {
    let mut frame = frame_at(r, 0);
    if r.below(8) == 0 {
        let at = r.below(frame.len());
        frame[at] = r.next() as u8;
    }
    frame
}

/// Returns a frame that carries another.
pub fn tunnel_frame(r: &mut Random) -> Vec<u8> {
    let body = tunnel(r, 0);
    let kind: [u8; 2] = if body[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] };
    let mut frame = join(&[&mac(r), &mac(r)]);
    for _ in 0..r.pick(&[0usize, 0, 1, 2]) {
        frame.extend([0x81, 0, 0, 100]);
    }
    join(&[&frame, &kind, &body])
}

/// Returns frames of all lengths: whole, truncated, and noise.
pub fn frames(seed: u64, count: usize) -> Vec<Vec<u8>> {
    let mut r = Random::new(seed);
    (0..count)
        .map(|index| {
            let mut frame = match index % 16 {
                0 => {
                    let length = r.below(201);
                    r.bytes(length)
                }
                1 | 2 => tunnel_frame(&mut r),
                _ => frame(&mut r),
            };
            match index % 4 {
                // Truncated anywhere, or close to the end of a header.
                0 => frame.truncate(r.below(201)),
                1 => frame.truncate(r.pick(&[
                    13, 14, 15, 16, 17, 18, 20, 22, 23, 24, 26, 30, 33, 34, 36, 37, 38, 40, 42, 46, 53, 54, 55, 56, 58,
                    60, 62, 66,
                ])),
                _ => {}
            }
            frame
        })
        .collect()
}
