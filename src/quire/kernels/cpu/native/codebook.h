// Codes that are indices of 16 numbers, and scales of groups. Included inside a namespace, after
// dot512.h or dot256.h.

// What the 16 codes stand for in bytes, and the unit of these (formats/nf4.py and mxfp4.py).
constexpr int8_t NF4_BYTES[16] = {-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127};
constexpr int8_t MXFP4_BYTES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr const int8_t* codebook(Format format) {
    return format == Format::nf4 ? NF4_BYTES : MXFP4_BYTES;
}

// The scales of 16 outputs of a group.
template <Format format>
inline F32 load_scale(const uint8_t* p) {
    if constexpr (format == Format::mxfp4) return load_exponents(p) * F32::all(0.5f);
    else if constexpr (format == Format::nf4) return load_half(p) * F32::all(1.0f / 127.0f);
    else return load_half(p);
}
