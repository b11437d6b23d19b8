//! A program's stack.

/// Maximum stack of a program, including the functions that it is calling.
pub const STACK_SIZE: u32 = 512;
const SLOT: u32 = 8;

/// Returns the offset, from the frame's end, of the 8 bytes below a function's stack of that depth; `None` if the stack
/// is full.
pub fn slot_below(depth: u32) -> Option<i16> {
    let bottom = depth.checked_next_multiple_of(SLOT)?.checked_add(SLOT).filter(|bottom| *bottom <= STACK_SIZE)?;
    i16::try_from(bottom).ok().map(|bottom| -bottom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_aligned_and_inside_the_stack() {
        assert_eq!(slot_below(0), Some(-8));
        assert_eq!(slot_below(61), Some(-72));
        assert_eq!(slot_below(504), Some(-512));
        assert_eq!(slot_below(505), None);
        assert_eq!(slot_below(u32::MAX), None);
    }
}
