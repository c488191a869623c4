use super::*;
use crate::case::Values;

const ALL: [DType; 4] = [DType::Q8_0, DType::Q4_0, DType::Q4K, DType::Q6K];

fn decoded(dtype: DType, block: &[u8]) -> Vec<f32> {
    let format = Format::of(dtype).unwrap();
    let mut values = vec![f32::NAN; format.block_len()];
    format.decode(block, &mut values);
    values
}

#[test]
fn the_table_has_the_types_with_arithmetic() {
    for &dtype in DType::ALL {
        assert_eq!(Format::of(dtype).is_some(), dtype.is_quantized(), "{dtype}");
    }
    for format in &TABLE {
        assert!(format.block_len() <= BLOCK_LEN_MAX && format.block_len() / format.group_len <= GROUPS_MAX);
    }
}

#[test]
fn q4_0_bytes_are_known() {
    // Scale 0.5; byte 0 holds elements 0 and 16, byte 15 elements 15 and 31, the others 8, which is 0.
    let mut block = [0x88u8; 18];
    block[..2].copy_from_slice(&[0x00, 0x38]);
    block[2] = 0xF0;
    block[17] = 0x1A;
    let mut want = [0.0; 32];
    (want[0], want[16], want[15], want[31]) = (-4.0, 3.5, 1.0, -3.5);
    assert_eq!(decoded(DType::Q4_0, &block), want);
}

#[test]
fn q4_k_bytes_are_known() {
    let mut block = [0u8; 144];
    // d = 2, dmin = 0.25.
    block[..4].copy_from_slice(&[0x00, 0x40, 0x00, 0x34]);
    let packed = &mut block[4..16];
    // Group 0: s = 5, m = 8. Group 5: s = 0b10_0011 = 35, m = 0b11_0100 = 52, in bytes 9, 1 and 5.
    packed[0] = 5;
    packed[4] = 8;
    packed[9] = 0x43;
    packed[1] = 0b1000_0000;
    packed[5] = 0b1100_0000;
    // Group 0 has the low halves of the first 32 bytes, group 5 the high ones of the third.
    block[16] = 0x0F;
    block[16 + 31] = 0x03;
    block[16 + 64 + 2] = 0x70;
    let values = decoded(DType::Q4K, &block);
    assert_eq!([values[0], values[1], values[31]], [10.0 * 15.0 - 2.0, -2.0, 10.0 * 3.0 - 2.0]);
    assert_eq!([values[160], values[162], values[191]], [-13.0, 70.0 * 7.0 - 13.0, -13.0]);
    // The other groups have neither scale nor minimum.
    assert!(values[32..160].iter().chain(&values[192..]).all(|&value| value == 0.0));
}

#[test]
fn q6_k_bytes_are_known() {
    let mut block = [0u8; 210];
    // d = 0.5; group 0 has scale 3, group 3 has −2, group 14 has 100, the others 0.
    block[208..].copy_from_slice(&[0x00, 0x38]);
    (block[192], block[192 + 3], block[192 + 14]) = (3, 0xFE, 100);
    // Element 1: low bits 9 in byte 1, high bits 3 in bits 0 and 1 of the second part's byte 1: 57 − 32 = 25.
    block[1] = 0x09;
    block[128 + 1] = 0b0000_0011;
    // Element 50: quarter 1, 18 in it: the low half of byte 32 + 18, bits 2 and 3 of byte 18: 16 + 5 − 32 = −11.
    block[32 + 18] = 0x05;
    block[128 + 18] = 0b0000_0100;
    // Element 128 + 98 = 226: quarter 3 of the second half, 2 in it: the high half of byte 64 + 32 + 2, bits 6 and 7
    // of byte 32 + 2: 32 + 15 − 32 = 15.
    block[64 + 32 + 2] = 0xF0;
    block[128 + 32 + 2] = 0b1000_0000;
    let values = decoded(DType::Q6K, &block);
    assert_eq!([values[0], values[1], values[2]], [1.5 * -32.0, 1.5 * 25.0, 1.5 * -32.0]);
    assert_eq!([values[50], values[51]], [11.0, 32.0]);
    assert_eq!([values[226], values[227]], [50.0 * 15.0, 50.0 * -32.0]);
    assert_eq!(values[16], 0.0);
}

#[test]
fn f32_is_the_nearest_of_the_exact_value() {
    let mut values = Values::new(7);
    for dtype in ALL {
        let format = Format::of(dtype).unwrap();
        let x = values.tensor(dtype, &[1024], -3.0, 3.0);
        let mut rounded = vec![0.0; 1024];
        format.decode(x.bytes(), &mut rounded);
        let exact = format.exact(x.bytes());
        for (index, (&rounded, &exact)) in rounded.iter().zip(&exact).enumerate() {
            assert_eq!(rounded, exact as f32, "{dtype}: element {index}");
            let (block, inner) = (index / format.block_len(), index % format.block_len());
            let bytes = &x.bytes()[block * format.block_bytes()..][..format.block_bytes()];
            assert_eq!(format.element(bytes, inner), exact, "{dtype}: element {index}");
        }
    }
}

/// Rows that are hard to round: all of a sign, one large, a block of small numbers beside large ones.
fn rows() -> Vec<Vec<f32>> {
    let mut values = Values::new(11);
    let mut row =
        |low: f64, high: f64| (0..512).map(|_| values.uniform(low, high) as f32).collect::<Vec<f32>>();
    let mut rows = vec![row(-1.0, 1.0), row(0.5, 2.0), row(-7.0, -6.0), row(-1e-3, 1e-3), row(0.0, 0.0)];
    let mut one_large = row(-0.1, 0.1);
    (one_large[100], one_large[300]) = (50.0, -50.0);
    let mut uneven = row(-1.0, 1.0);
    uneven.iter_mut().enumerate().for_each(|(index, value)| *value *= 1.0 + (index / 16 % 5) as f32);
    rows.extend([one_large, uneven]);
    rows
}

#[test]
fn numbers_come_back_within_a_step() {
    for dtype in ALL {
        let format = Format::of(dtype).unwrap();
        for (number, row) in rows().iter().enumerate() {
            let blocks = format.encoded(row);
            let mut back = vec![0.0; row.len()];
            format.decode(&blocks, &mut back);
            let mut parts = Unpacked::default();
            for (index, (&x, &y)) in row.iter().zip(&back).enumerate() {
                let (block, inner) = (index / format.block_len(), index % format.block_len());
                format.unpack(&blocks[block * format.block_bytes()..][..format.block_bytes()], &mut parts);
                let step = parts.scales[inner / format.group_len].abs();
                // Symmetric formats have one step less on one side.
                let steps = if dtype == DType::Q4K { 0.501 } else { 1.01 };
                let off = (x - y).abs();
                assert!(
                    off <= steps * step,
                    "{dtype}, row {number}, element {index}: {x} became {y}, step {step}"
                );
            }
        }
    }
}

/// The mean square of what is lost, in shares of that of the numbers.
fn loss(dtype: DType, row: &[f32]) -> f64 {
    let format = Format::of(dtype).unwrap();
    let mut back = vec![0.0; row.len()];
    format.decode(&format.encoded(row), &mut back);
    let square = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| f64::from(x * x)).sum::<f64>();
    square(&mut row.iter().zip(&back).map(|(x, y)| x - y)) / square(&mut row.iter().copied())
}

#[test]
fn losses_are_those_of_the_bits() {
    let row = &rows()[0];
    // Uniform numbers in n steps lose 1/n² of their square: 1/254², 1/16², 1/15², 1/64², and some for rounded scales.
    for (dtype, most) in [(DType::Q8_0, 2e-5), (DType::Q4_0, 5e-3), (DType::Q4K, 5.5e-3), (DType::Q6K, 3e-4)]
    {
        let loss = loss(dtype, row);
        assert!(loss < most, "{dtype}: {loss:e}");
    }
    // A minimum of its own keeps numbers far from 0 apart.
    assert!(loss(DType::Q4K, &rows()[2]) < loss(DType::Q4_0, &rows()[2]) / 20.0);
}

#[test]
fn encoding_is_a_fixed_function() {
    let row: Vec<f32> = (0..256).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let sum = |dtype: DType| {
        let bytes = Format::of(dtype).unwrap().encoded(&row);
        bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    let want = [3040828530889982521, 3650313855083938872, 14758084442780642792, 8447809625095373922];
    assert_eq!(ALL.map(sum), want);
}

#[test]
fn zeros_stay_and_what_is_no_number_does_not_vanish() {
    for dtype in ALL {
        let format = Format::of(dtype).unwrap();
        let mut row = vec![0.0; format.block_len()];
        assert!(decoded(dtype, &format.encoded(&row)).iter().all(|&value| value == 0.0), "{dtype}");
        for stranger in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            row.fill(1.0);
            row[9] = stranger;
            assert!(!decoded(dtype, &format.encoded(&row))[9].is_finite(), "{dtype} of {stranger}");
        }
        for huge in [f32::MAX, f32::MIN] {
            row.fill(huge);
            assert!(decoded(dtype, &format.encoded(&row)).iter().all(|value| !value.is_finite()), "{dtype}");
        }
        row.fill(1e-42);
        assert!(decoded(dtype, &format.encoded(&row)).iter().all(|value| value.abs() < 1e-4), "{dtype}");
    }
}

#[test]
#[should_panic(expected = "values and 144 bytes of q4_k blocks")]
fn blocks_must_be_whole() {
    Format::of(DType::Q4K).unwrap().decode(&[0; 144], &mut [0.0; 255]);
}
