//! Registers of a block, and where things lie in its scratch.

/// Registers of the block, beside r1 to r5 of the contract.
pub(super) mod reg {
    /// A temporary, and the result at the end.
    pub const TMP: u8 = 0;
    pub const CONTEXT: u8 = 1;
    pub const DATA: u8 = 2;
    pub const DATA_END: u8 = 3;
    pub const LENGTH: u8 = 4;
    pub const SCRATCH: u8 = 5;
    /// In the slow version, which calls helpers, the scratch lives in a register that calls keep.
    pub const SLOW_SCRATCH: u8 = 6;
    pub const A: u8 = 7;
    pub const X: u8 = 8;
    /// In the fast version, the packet's data at X.
    pub const POINTER: u8 = 9;
    /// In the slow version, the context.
    pub const SLOW_CONTEXT: u8 = 9;
}

/// Where things lie in the scratch.
pub(super) mod slot {
    /// The sixteen cells of scratch memory, eight bytes each so that the verifier keeps bounds.
    pub const MEMORY: i16 = 0;
    /// Where the load helper puts a field.
    pub const STAGING: i16 = 128;
    pub const LENGTH: i16 = 136;
    /// Backward jumps left.
    pub const LOOPS: i16 = 144;
    /// Where the inner packet begins.
    pub const BASE: i16 = 152;
    /// The frame's first twenty bytes with its tag put back; the tag itself is always there.
    pub const IMAGE: i16 = 160;
    pub const TAG: i16 = IMAGE + 12;
    /// Registers kept over a helper call; the first also holds an offset in the slow version.
    pub const KEPT: i16 = 184;
    /// The state that the search of a table ended in, in the upper half.
    pub const STATE: i16 = KEPT + 5 * 8;
}

const _: () = assert!(slot::STATE + 8 <= super::SCRATCH_SIZE);
