use super::*;
use ssmgraph_ops::DType;

fn sample() -> Writer {
    let mut writer = Writer::new();
    writer
        .metadata("general.architecture", "mamba2")
        .and_then(|w| w.metadata("mamba2.block_count", 2u32))
        .and_then(|w| w.metadata("wide", u64::MAX))
        .and_then(|w| w.metadata("negative", -3i8))
        .and_then(|w| w.metadata("eps", 1e-5f32))
        .and_then(|w| w.metadata("flag", true))
        .and_then(|w| w.metadata("heads", vec![0i32, 2]))
        .and_then(|w| w.metadata("tokens", vec!["a", "", "é"]))
        .and_then(|w| w.metadata("broken", Value::String(Text(vec![0xff]))))
        .and_then(|w| w.metadata("none", Vec::<f32>::new()))
        .and_then(|w| w.tensor_f32("weight", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
        .and_then(|w| w.tensor("blocks", DType::Q8_0, &[64, 1], (0..68).collect()))
        .and_then(|w| w.tensor("empty", DType::F16, &[4, 0], Vec::new()))
        .unwrap();
    writer
}

#[test]
fn what_is_written_is_read() {
    let gguf = sample().to_gguf().unwrap();
    assert_eq!((gguf.version(), gguf.alignment()), (3, 32));
    assert_eq!(gguf.architecture().unwrap(), "mamba2");
    assert_eq!(gguf.u32("mamba2.block_count").unwrap(), 2);
    assert_eq!(gguf.u64("wide").unwrap(), u64::MAX);
    assert_eq!(gguf.f32("eps").unwrap(), 1e-5);
    assert!(gguf.bool("flag").unwrap());
    assert_eq!(gguf.array_u32("heads").unwrap(), [0, 2]);
    assert_eq!(gguf.array_string("tokens").unwrap(), ["a", "", "é"]);
    assert_eq!(gguf.array_f32("none").unwrap(), [0.0; 0]);
    let weight = gguf.tensor("weight").unwrap();
    assert_eq!(weight.layout, Layout::contiguous(DType::F32, &[3, 2]).unwrap());
    assert_eq!(weight.offset % 32, 0);
    assert_eq!(gguf.tensor_bytes("weight").unwrap()[4..8], 2f32.to_le_bytes());
    assert_eq!(gguf.tensor_bytes("blocks").unwrap(), (0..68).collect::<Vec<u8>>());
    assert!(gguf.tensor_bytes("empty").unwrap().is_empty());
    assert_eq!(gguf.tensors().len(), 3);
}

#[test]
fn errors_name_the_key_and_what_was_found() {
    let gguf = sample().to_gguf().unwrap();
    let text = |error: GgufError| error.to_string();
    assert_eq!(text(gguf.u32("absent").unwrap_err()), "GGUF key \"absent\" is missing");
    assert_eq!(
        text(gguf.u32("wide").unwrap_err()),
        "GGUF key \"wide\" is u64 18446744073709551615, expected a u32"
    );
    assert_eq!(text(gguf.usize("negative").unwrap_err()), "GGUF key \"negative\" is i8 -3, expected a size");
    assert_eq!(text(gguf.bool("eps").unwrap_err()), "GGUF key \"eps\" is f32 0.00001, expected a bool");
    assert_eq!(
        text(gguf.array_f32("heads").unwrap_err()),
        "GGUF key \"heads\" is i32[2] with element 0 = i32 0, expected an array of floats"
    );
    assert_eq!(text(gguf.tensor("absent").unwrap_err()), "GGUF tensor \"absent\" is missing");
    assert!(text(gguf.string("broken").unwrap_err()).ends_with("expected a string of UTF-8"));
    assert!(GgufError::optional(gguf.u32("absent")).unwrap().is_none());
    assert!(GgufError::optional(gguf.u32("eps")).is_err());
}

#[test]
fn per_layer_values_may_be_one_or_many() {
    let gguf = sample().to_gguf().unwrap();
    assert_eq!(gguf.u32_per_layer("mamba2.block_count", 3).unwrap(), [2, 2, 2]);
    assert_eq!(gguf.u32_per_layer("heads", 2).unwrap(), [0, 2]);
    assert_eq!(
        gguf.u32_per_layer("heads", 3).unwrap_err().to_string(),
        "GGUF key \"heads\" is i32[2], expected one integer or 3 of them"
    );
}

#[test]
fn every_type_survives_a_round_trip() {
    let values = [
        Value::U8(200),
        Value::I8(-100),
        Value::U16(60000),
        Value::I16(-30000),
        Value::U32(u32::MAX),
        Value::I32(i32::MIN),
        Value::F32(-0.0),
        Value::Bool(false),
        Value::String("".into()),
        Value::U64(1 << 63),
        Value::I64(i64::MIN),
        Value::F64(f64::MAX),
        Value::Array(Array::U8(vec![1])),
        Value::Array(Array::I8(vec![-1])),
        Value::Array(Array::U16(vec![2, 3])),
        Value::Array(Array::I16(vec![-2])),
        Value::Array(Array::U32(vec![4])),
        Value::Array(Array::I32(vec![-4])),
        Value::Array(Array::F32(vec![1.5])),
        Value::Array(Array::Bool(vec![true, false])),
        Value::Array(Array::String(vec!["x".into(), Text(vec![0xfe])])),
        Value::Array(Array::U64(vec![8])),
        Value::Array(Array::I64(vec![-8])),
        Value::Array(Array::F64(vec![2.5])),
    ];
    let mut writer = Writer::new();
    for (index, value) in values.iter().enumerate() {
        writer.metadata(&index.to_string(), value.clone()).unwrap();
    }
    let gguf = writer.to_gguf().unwrap();
    for (index, value) in values.iter().enumerate() {
        assert_eq!(gguf.get(&index.to_string()).unwrap(), value);
    }
    assert_eq!(gguf.metadata().len(), values.len());
}

#[test]
fn version_2_is_read_and_others_are_named() {
    let mut bytes = sample().to_bytes();
    let with_version = |bytes: &mut Vec<u8>, version: [u8; 4]| {
        bytes[4..8].copy_from_slice(&version);
        Gguf::parse(Arc::new(bytes.clone()))
    };
    assert_eq!(with_version(&mut bytes, [2, 0, 0, 0]).unwrap().version(), 2);
    let text = |result: Result<Gguf, GgufError>| result.unwrap_err().to_string();
    assert_eq!(text(with_version(&mut bytes, [1, 0, 0, 0])), "GGUF version 1, expected 2 or 3");
    assert!(text(with_version(&mut bytes, [0, 0, 0, 3])).starts_with("big-endian GGUF (version 3"));
    bytes[0] = b'g';
    assert!(text(Gguf::parse(Arc::new(bytes))).starts_with("not a GGUF file: the first bytes are [67, 47"));
    assert!(matches!(Gguf::parse(Arc::new(Vec::new())), Err(GgufError::NotGguf { .. })));
}

#[test]
fn alignment_is_a_power_of_two_from_8_on() {
    let mut writer = sample();
    writer.alignment(4096).unwrap();
    let gguf = writer.to_gguf().unwrap();
    assert_eq!(gguf.alignment(), 4096);
    assert!(gguf.tensors().iter().all(|tensor| tensor.offset % 4096 == 0));
    assert!(Writer::new().alignment(24).is_err());

    let key = b"general.alignment".as_slice();
    let bytes = writer.to_bytes();
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 4;
    for wrong in [0u32, 1, 4, 24, 33, u32::MAX] {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
        let error = Gguf::parse(Arc::new(bytes)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("GGUF key \"general.alignment\" is u32 {wrong}")), "{error}");
    }
    let mut bytes = bytes;
    bytes[at..at + 4].copy_from_slice(&(1u32 << 31).to_le_bytes());
    assert!(Gguf::parse(Arc::new(bytes)).is_err());
}

#[test]
fn tensors_that_share_bytes_are_refused() {
    let mut writer = Writer::new();
    writer.tensor_f32("first", &[16], &[1.0; 16]).unwrap().tensor_f32("second", &[4], &[2.0; 4]).unwrap();
    let mut bytes = writer.to_bytes();
    let name = bytes.windows(6).position(|window| window == b"second").unwrap();
    let offset = name + 6 + 4 + 8 + 4;
    assert_eq!(bytes[offset..offset + 8], 64u64.to_le_bytes());
    bytes[offset..offset + 8].copy_from_slice(&32u64.to_le_bytes());
    let error = Gguf::parse(Arc::new(bytes.clone())).unwrap_err().to_string();
    assert!(error.contains("tensor \"second\" begins inside tensor \"first\""), "{error}");
    bytes[offset..offset + 8].copy_from_slice(&65u64.to_le_bytes());
    let error = Gguf::parse(Arc::new(bytes)).unwrap_err().to_string();
    assert!(error.ends_with("tensor \"second\" has offset 65, expected a multiple of 32"), "{error}");
}

#[test]
fn a_negative_count_does_not_hide_behind_an_empty_axis() {
    let mut writer = Writer::new();
    writer.tensor("x", DType::F32, &[7, 0], Vec::new()).unwrap();
    let mut bytes = writer.to_bytes();
    let ne = bytes.iter().rposition(|&byte| byte == 7).unwrap();
    bytes[ne..ne + 8].copy_from_slice(&(-4i64).to_le_bytes());
    let error = Gguf::parse(Arc::new(bytes)).unwrap_err().to_string();
    assert!(error.contains("tensor \"x\" has ne[0] = -4"), "{error}");
}

#[test]
fn the_writer_refuses_what_a_reader_would() {
    let mut writer = sample();
    assert!(writer.metadata("flag", false).is_err());
    assert!(writer.metadata("", false).is_err());
    assert!(writer.metadata("general.alignment", 64u32).is_err());
    assert!(writer.tensor_f32("weight", &[1], &[0.0]).is_err());
    assert!(writer.tensor_f32("", &[1], &[0.0]).is_err());
    assert!(writer.tensor_f32("short", &[2], &[0.0]).is_err());
    assert!(writer.tensor("blocks of 33", DType::Q8_0, &[33], vec![0; 34]).is_err());
}

#[test]
fn long_names_are_kept_whole() {
    let (long, longer) = ("n".repeat(NAME_BYTES_MAX), "n".repeat(NAME_BYTES_MAX - 1));
    let mut writer = Writer::new();
    writer.tensor_f32(&long, &[1], &[1.0]).unwrap().tensor_f32(&longer, &[1], &[2.0]).unwrap();
    let gguf = writer.to_gguf().unwrap();
    assert_eq!(gguf.tensor_bytes(&long).unwrap(), 1f32.to_le_bytes());
    assert_eq!(gguf.tensor_bytes(&longer).unwrap(), 2f32.to_le_bytes());
}

#[test]
fn a_file_on_disk_is_mapped() {
    let path = std::env::temp_dir().join(format!("ssmgraph-gguf-{}.gguf", std::process::id()));
    std::fs::write(&path, sample().to_bytes()).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let weight = gguf.tensor_bytes("weight").unwrap();
    assert_eq!(weight.as_ptr() as usize % gguf.alignment(), 0);
    let error = Gguf::open(&path).unwrap_err().to_string();
    assert!(error.starts_with(&path.display().to_string()), "{error}");
}

#[test]
fn a_file_is_a_source_of_weights() {
    let gguf = sample().to_gguf().unwrap();
    let weight = gguf.find("blocks").unwrap();
    assert_eq!(weight.layout, Layout::contiguous(DType::Q8_0, &[64]).unwrap());
    assert_eq!(&(*weight.bytes).as_ref()[weight.range], gguf.tensor_bytes("blocks").unwrap());
    assert!(gguf.find("absent").is_none());
}
