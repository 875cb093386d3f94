/* All files that include this are compiled several times into one library, once for each kind of
 * CPU (see CMakeLists.txt at the top). Names that others use end in that of the variant, such as
 * multiply_avx2; Python takes those of the best variant that the CPU runs, which dispatch.c names. */

#ifndef TRANSDUCE_VARIANT
#define TRANSDUCE_VARIANT

#define JOIN_NAMES(name, variant) name##_##variant
#define NAME_OF(name, variant) JOIN_NAMES(name, variant)
#define NAME(name) NAME_OF(name, VARIANT)

/* products.c */
#define has_kernel NAME(has_kernel)
#define weight_offset NAME(weight_offset)
#define weight_block NAME(weight_block)
#define product_workspace NAME(product_workspace)
#define multiply NAME(multiply)
/* parts.c */
#define normalise NAME(normalise)
#define attend NAME(attend)
#define rotate NAME(rotate)
#define activate NAME(activate)
#define softmax NAME(softmax)
#define log_softmax NAME(log_softmax)
#define find_log_probs NAME(find_log_probs)
/* stack.c */
#define stack_workspace NAME(stack_workspace)
#define decoder_step NAME(decoder_step)
#define encode NAME(encode)
#define layout NAME(layout)
#define layout_length NAME(layout_length)
/* recurrent.c */
#define sequences_workspace NAME(sequences_workspace)
#define read_sequences NAME(read_sequences)
#define start_workspace NAME(start_workspace)
#define start_decoder NAME(start_decoder)
#define recurrent_workspace NAME(recurrent_workspace)
#define recurrent_step NAME(recurrent_step)
#define recurrent_layout NAME(recurrent_layout)
#define recurrent_layout_length NAME(recurrent_layout_length)
/* copying.c */
#define find_copied NAME(find_copied)
#define copying_layout NAME(copying_layout)
#define copying_layout_length NAME(copying_layout_length)
/* best.c */
#define find_best NAME(find_best)
/* slots.c */
#define advance_slots NAME(advance_slots)
#define next_rows NAME(next_rows)
#define end_step NAME(end_step)
#define slots_layout NAME(slots_layout)
#define slots_layout_length NAME(slots_layout_length)
/* mel.c */
#define mel_features NAME(mel_features)

#endif
