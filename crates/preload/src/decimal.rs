//! Numbers as text without the formatting machinery, which may panic.

/// Most digits of a number.
pub const DIGITS_MAX: usize = 20;

/// `number` in decimal digits, written to the end of `digits`.
pub fn decimal(number: u64, digits: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let (mut left, mut first) = (number, DIGITS_MAX);
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
        first -= 1;
        if left == 0 {
            break;
        }
    }
    digits.get(first..).unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_by_the_standard_library() {
        for number in [0, 1, 9, 10, 12_345, u64::from(u32::MAX), u64::MAX] {
            let mut digits = [b'x'; DIGITS_MAX];
            assert_eq!(decimal(number, &mut digits), number.to_string().as_bytes());
        }
    }
}
